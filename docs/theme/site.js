// What the theme leaves without a name, or out of the reach of a keyboard.
window.addEventListener("load", () => {
  for (const summary of document.querySelectorAll("summary:not([aria-label])")) {
    if (!summary.textContent.trim()) summary.setAttribute("aria-label", "Pages of this section");
  }
  for (const content of document.querySelectorAll(".bd-article p > img, .formula > math")) {
    const box = content.parentElement;
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
});
