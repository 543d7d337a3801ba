// Runs before the page is painted. A page opened from disk may have no storage: then the system's choice stands.
try {
  const chosen = localStorage.getItem("fairbits-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Nothing to remember, nothing to tell.
}
