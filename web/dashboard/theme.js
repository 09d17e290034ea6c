// Runs before anything is drawn, so that nobody who chose the dark sees a flash of the light.
(() => {
  try {
    const chosen = localStorage.getItem('solely.theme');
    if (chosen === 'dark' || chosen === 'light') document.documentElement.dataset.theme = chosen;
  } catch {
    // A browser that keeps nothing follows the system.
  }
})();
