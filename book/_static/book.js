// A page opened from disk may not read its neighbours, so the search shows no excerpts there.
if (location.protocol === "file:" && window.DOCUMENTATION_OPTIONS) {
  window.DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}
