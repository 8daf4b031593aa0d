// Unsent answers, by thread and the head that the person saw. A draft survives a visit to another page.
import { useState } from "preact/hooks";

const keyOf = (thread, head) => `draft ${thread} ${head}`;

export const readDraft = (thread, head) => JSON.parse(sessionStorage.getItem(keyOf(thread, head)));

export const forgetDraft = (thread, head) => sessionStorage.removeItem(keyOf(thread, head));

// Like `useState`, for one field of an answer.
export function useDraft(thread, head, name, first) {
  const [value, setValue] = useState(() => readDraft(thread, head)?.[name] ?? first);
  const change = (next) => {
    setValue(next);
    sessionStorage.setItem(keyOf(thread, head), JSON.stringify({ ...readDraft(thread, head), [name]: next }));
  };
  return [value, change];
}
