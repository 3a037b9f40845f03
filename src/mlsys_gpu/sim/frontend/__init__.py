"""The front half: from TVM's lowered device function to a Program's Python source."""
