// Light or dark: what the reader chose on the site, which keeps it for its theme under this key, or
// what the machine prefers.
(() => {
  const suffix = ".__palette";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const key = () => Object.keys(localStorage).find((name) => name.endsWith(suffix));
  const site = new URL("../../", location).pathname + suffix;
  const chosen = () => {
    try {
      return JSON.parse(localStorage.getItem(key())).color.scheme;
    } catch {
      return dark.matches ? "slate" : "default";
    }
  };
  const show = (scheme) => (document.documentElement.dataset.scheme = scheme);
  show(chosen());
  dark.addEventListener("change", () => show(chosen()));
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("scheme").addEventListener("click", () => {
      const scheme = document.documentElement.dataset.scheme === "slate" ? "default" : "slate";
      const index = scheme === "slate" ? 1 : 0;
      const media = `(prefers-color-scheme: ${scheme === "slate" ? "dark" : "light"})`;
      const color = { media, scheme, primary: "custom", accent: "teal" };
      try {
        localStorage.setItem(key() || site, JSON.stringify({ index, color }));
      } catch {
        // A page of a file may have no storage; the choice then holds for this page.
      }
      show(scheme);
    });
  });
})();
