/** Light, dark, or as the system says; kept in this browser. */
const KEY = "penstock-theme";
export const THEMES = ["system", "light", "dark"];

export const theme = () => {
  const kept = localStorage.getItem(KEY) ?? "";
  return THEMES.includes(kept) ? kept : "system";
};

/** @param {string} chosen */
export function setTheme(chosen) {
  localStorage.setItem(KEY, chosen);
  applyTheme();
}

export function applyTheme() {
  document.documentElement.dataset.theme = theme();
}
