/** Dialogs: the browser's own, which keeps the focus inside, closes on Escape, and gives the focus back. */
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { Note } from "./bits.js";
import { Icon } from "./icons.js";

/** @param {{title: string, onClose: () => void, children: any, wide?: boolean}} props */
export function Dialog({ title, onClose, children, wide }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return html`<dialog ref=${dialog} class=${wide ? "wide" : ""} aria-labelledby="dialog-title" onClose=${onClose}>
    <header><h2 id="dialog-title">${title}</h2>
      <button type="button" class="icon-button" aria-label="Close" onClick=${() => dialog.current?.close()}><${Icon} name="cross" /></button></header>
    ${children(() => dialog.current?.close())}
  </dialog>`;
}

/**
 * Asks whether something is to be done, does it, and says why if it was refused.
 * @param {{title: string, action: string, tone?: string, act: () => Promise<any>, onClose: () => void, children: any,
 *   ready?: boolean, wide?: boolean, busy?: string}} props
 */
export function Confirm({ title, action, tone = "", act, onClose, children, ready = true, wide, busy }) {
  const [state, setState] = useState({ acting: false, error: "" });
  const run = async (/** @type {() => void} */ close) => {
    setState({ acting: true, error: "" });
    try {
      await act();
      close();
    } catch (error) {
      setState({ acting: false, error: error instanceof Error ? error.message : String(error) });
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose} wide=${wide}>${(/** @type {() => void} */ close) => html`
    <form onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); if (ready && !state.acting) run(close); }}>
      <div class="dialog-body">${children}${state.error && html`<${Note} tone="bad" title="Refused.">${state.error}<//>`}</div>
      <footer>
        <button type="button" class="button" onClick=${close}>Keep as it is</button>
        <button type="submit" class="button primary" data-tone=${tone} disabled=${!ready || state.acting}>${state.acting ? busy ?? "Asking …" : action}</button>
      </footer>
    </form>`}<//>`;
}
