"""For the simulator's tests: a cache of their own."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    """Sources in temporary folders must not fill the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLSYS_GPU_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
