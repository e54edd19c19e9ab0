// What everything that draws on a canvas needs: the page's colours, and the screen's own pixels.

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A context scaled to the screen's own pixels, as large as the element. */
export function prepared(canvas, height = canvas.clientHeight) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "12px Inter, system-ui, sans-serif";
  return { pen, width, height };
}

let pending = new Set();

/** Calls `act` with the next frame, once however often it is asked for. */
export function soon(act) {
  if (pending.has(act)) return;
  pending.add(act);
  requestAnimationFrame(() => {
    pending.delete(act);
    act();
  });
}
