// What a word of the course means: under the pointer, at the keyboard's focus, at a touch. Esc closes it. Without
// JavaScript the browser shows the title of the word under the pointer.
function explain(words) {
  const box = document.createElement("div");
  let shown = null;
  let leaving = 0;
  function hide() {
    clearTimeout(leaving);
    shown?.removeAttribute("aria-describedby");
    shown = null;
    box.hidden = true;
  }
  function show(word) {
    hide();
    shown = word;
    box.textContent = word.dataset.meaning;
    box.hidden = false;
    word.setAttribute("aria-describedby", box.id);
    const at = word.getBoundingClientRect();
    const top = at.bottom + box.offsetHeight + 8 < innerHeight ? at.bottom + 4 : at.top - box.offsetHeight - 4;
    const left = Math.min(at.left, document.documentElement.clientWidth - box.offsetWidth - 8);
    Object.assign(box.style, { left: `${Math.max(8, left) + scrollX}px`, top: `${top + scrollY}px` });
  }
  const leave = () => (leaving = setTimeout(hide, 200));
  const stay = () => clearTimeout(leaving);
  box.id = "meaning";
  box.role = "tooltip";
  box.hidden = true;
  document.body.append(box);
  for (const word of words) {
    word.dataset.meaning = word.title;
    word.removeAttribute("title");
    for (const when of ["mouseenter", "focus", "click"]) word.addEventListener(when, () => show(word));
    word.addEventListener("blur", hide);
  }
  for (const part of [box, ...words]) part.addEventListener("mouseleave", leave);
  box.addEventListener("mouseenter", stay);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
}

document.addEventListener("DOMContentLoaded", () => explain(document.querySelectorAll("abbr.term")));
