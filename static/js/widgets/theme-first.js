// A classic script in the head, so that a page set to dark never flashes white before the modules load.
try {
  const theme = JSON.parse(localStorage.getItem("parley.theme"));
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // storage is forbidden: the system's preference holds
}
