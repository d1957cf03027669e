// The logs of a bot follow what it writes, unless they are paused or the reader has scrolled up.
import { morph } from "./morph.js";
import { setTimes } from "./times.js";

const EVERY_MS = 2000;

/** Follow the logs of the page, if it has any. */
export function followLogs() {
  const form = document.querySelector("[data-logs]");
  if (!form) return;
  const box = document.getElementById("logs");
  const said = document.getElementById("logs-state");
  const pause = form.querySelector("[data-pause]");
  const copy = form.querySelector("[data-copy]");
  let timer = 0;
  pause.hidden = copy.hidden = false;
  box.scrollTop = box.scrollHeight;

  const paused = () => pause.getAttribute("aria-pressed") === "true";
  const ended = () => Boolean(document.querySelector("[data-bot][data-ended]"));

  async function fetchLines() {
    clearTimeout(timer);
    const before = ended();
    try {
      const query = new URLSearchParams(new FormData(form));
      const answer = await fetch(`${form.dataset.logs}?${query}`, { headers: { "X-Botpool-Part": "1" } });
      if (answer.ok) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("logs");
        const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
        setTimes(fresh);
        morph(box, fresh);
        if (atEnd) box.scrollTop = box.scrollHeight;
      }
    } catch {
      // Cut: the page shows that.
    }
    tell();
    if (!before) timer = setTimeout(() => (paused() || document.hidden ? later() : fetchLines()), EVERY_MS);
  }

  function later() {
    timer = setTimeout(() => (paused() || document.hidden ? later() : fetchLines()), EVERY_MS);
  }

  function tell() {
    const { found, total } = box.dataset;
    const lines = found === total ? `${total} lines` : `${found} of ${total} lines`;
    said.textContent = `${lines}, ${ended() ? "complete" : paused() ? "paused" : "follows"}`;
  }

  pause.addEventListener("click", () => {
    pause.setAttribute("aria-pressed", String(!paused()));
    pause.textContent = paused() ? "Go on" : "Pause";
    tell();
    if (!paused()) fetchLines();
  });
  copy.addEventListener("click", async () => {
    const lines = [...box.querySelectorAll("div")].map((line) => [...line.children].map((part) => part.textContent).filter(Boolean).join(" "));
    await navigator.clipboard.writeText(lines.join("\n"));
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  let typing = 0;
  form.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
      history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
      fetchLines();
    }, 200);
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); fetchLines(); });
  fetchLines();
}
