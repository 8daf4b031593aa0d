// The addresses of views. `navigate` changes the address without loading the page again.
import { signal } from "@preact/signals";

export const route = signal(read());
export const title = signal(""); // the title of the current page

function read() {
  return { path: location.pathname, query: Object.fromEntries(new URLSearchParams(location.search)) };
}

addEventListener("popstate", () => { route.value = read(); });

export function navigate(address, { replace = false } = {}) {
  if (address === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  route.value = read();
  if (replace) return;
  scrollTo(0, 0);
  document.getElementById("main")?.focus({ preventScroll: true }); // so that the Tab key moves to the page's content
}

// Change parts of the query in the current address.
export function setQuery(changes) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value == null) query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  navigate(location.pathname + (text ? `?${text}` : ""), { replace: true });
}

// Follow links inside the page without loading it again; leave others to the browser.
addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  if (link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
  if (link.pathname.startsWith("/api/") || link.hash) return;
  event.preventDefault();
  navigate(link.pathname + link.search);
});
