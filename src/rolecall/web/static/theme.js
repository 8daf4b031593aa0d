// Set the theme before the first paint, so that the other theme does not flash.
const chosen = localStorage.getItem("theme");
if (chosen) document.documentElement.dataset.theme = chosen;
