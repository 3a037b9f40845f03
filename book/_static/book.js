// A page opened from disk may not read its neighbours, so the search shows no excerpts there.
if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}

// The theme leaves the book's title outside every landmark of the page.
document.addEventListener("DOMContentLoaded", () => {
  const title = document.querySelector(".bd-sidebar-primary .navbar-brand");
  if (title) title.closest(".sidebar-primary-item").setAttribute("role", "banner");
});

// A formula that is wider than a phone scrolls; then the keyboard must reach it.
function reachWideFormulas() {
  for (const formula of document.querySelectorAll('mjx-container[display="true"]')) {
    if (formula.scrollWidth > formula.clientWidth) formula.tabIndex = 0;
    else formula.removeAttribute("tabindex");
  }
}
window.addEventListener("load", () => {
  const typeset = window.MathJax && window.MathJax.startup && window.MathJax.startup.promise;
  Promise.resolve(typeset).then(reachWideFormulas);
  window.addEventListener("resize", reachWideFormulas);
});
