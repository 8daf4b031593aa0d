// The parts of the libraries that every component needs.
import { h, render } from "preact";
import htm from "htm";

export const html = htm.bind(h);
export { render };
export { useEffect, useErrorBoundary, useMemo, useRef, useState } from "preact/hooks";
export { signal } from "@preact/signals";

// HTML that the server has rendered and cleaned.
export function Prose({ html: text, class: name = "" }) {
  return text ? h("div", { class: `prose ${name}`, dangerouslySetInnerHTML: { __html: text } }) : null;
}
