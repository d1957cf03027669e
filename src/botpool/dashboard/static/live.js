// The page follows the stream. An event only says that something has changed: then the part of the page that can
// change is fetched again, and what differs is changed in place. However many events come, that happens at most
// every few hundred milliseconds, and less often where it takes long or many pages are open: the server says so.
import { morph } from "./morph.js";
import { setTimes, timeOfDay } from "./times.js";

const LEAST_PAUSE_MS = 400;
const MOST_PAUSE_MS = 2000;
const PAUSE_FACTOR = 4;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];
// What changes without an event: the progress of a pull, while one is shown; and, less often, all the rest, as a host
// that answers no longer.
const CHANGING_MS = 5000;
const ANYWAY_MS = 10000;
const EVENTS = ["bot.status_changed", "bot.noted", "bot.event", "slot.status_changed", "slot.noted", "pool.status_changed", "host.noted", "doctor.noted"];

let wanted = false;
let underWay = false;
let notBefore = 0;
let timer = 0;
let refreshedAt = Date.now();

/** Fetch the page's part that can change, soon. */
export function refresh() {
  wanted = true;
  if (!underWay && !timer) timer = setTimeout(run, Math.max(0, notBefore - performance.now()));
}

async function run() {
  timer = 0;
  if (document.hidden) return;
  wanted = false;
  underWay = true;
  const began = performance.now();
  let pause = 0;
  try {
    const answer = await fetch(document.body.dataset.here || location.href, { headers: { "X-Botpool-Part": "1" } });
    pause = Number(answer.headers.get("X-Botpool-Pause"));
    if (answer.status === 401) location.reload();
    else if (answer.ok) show(await answer.text());
  } catch {
    // The connection is cut, which the stream notices and shows.
  }
  const took = performance.now() - began;
  notBefore = performance.now() + Math.max(pause, Math.min(MOST_PAUSE_MS, Math.max(LEAST_PAUSE_MS, took * PAUSE_FACTOR)));
  underWay = false;
  if (wanted) refresh();
}

/** Show a fetched page: let every live part of this one be as it is there. */
export function show(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const twin = fresh.getElementById(part.id);
    if (!twin) continue;
    setTimes(twin);
    morph(part, twin);
  }
  refreshedAt = Date.now();
  document.dispatchEvent(new CustomEvent("botpool:shown"));
}

function state(name) {
  const shown = document.getElementById("connection");
  if (shown.dataset.state !== name) {
    shown.dataset.state = name;
    shown.textContent = name === "cut" ? "reconnecting" : name;
  }
  const cut = document.getElementById("cut");
  if (name === "cut" && cut.hidden) document.getElementById("cut-at").textContent = timeOfDay(refreshedAt);
  cut.hidden = name !== "cut";
}

/** Follow the stream for as long as the page is open. */
export function follow() {
  if (!document.querySelector("[data-live]")) return;
  const bot = document.querySelector("[data-bot]")?.dataset.bot;
  let last = "";
  let failures = 0;
  let source = null;
  let retry = 0;

  const connect = () => {
    clearTimeout(retry);
    source?.close();
    const query = new URLSearchParams();
    if (bot) query.set("botId", bot);
    if (last) query.set("lastEventId", last);
    source = new EventSource(new URL(`../../api/v1/stream?${query}`, import.meta.url)); // below the path that we are at
    source.onopen = () => {
      failures = 0;
      state("live");
      refresh(); // what happened meanwhile
    };
    for (const type of EVENTS) {
      source.addEventListener(type, (event) => {
        if (event.lastEventId) last = event.lastEventId;
        refresh();
      });
    }
    source.onerror = cut;
  };

  // EventSource reconnects by itself, but not after an answer such as 410 or 503: so we do it.
  const cut = () => {
    source.close();
    if (failures > 2) last = ""; // the place may be gone, and the page is fetched again anyway
    state("cut");
    clearTimeout(retry);
    retry = setTimeout(connect, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]);
  };

  connect();
  setInterval(() => {
    const due = document.querySelector("[data-changing]") ? CHANGING_MS : ANYWAY_MS;
    if (!document.hidden && Date.now() - refreshedAt >= due) refresh();
  }, CHANGING_MS);
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  window.addEventListener("offline", cut);
  window.addEventListener("online", connect);
  window.addEventListener("pagehide", () => source.close());
  window.addEventListener("pageshow", (event) => event.persisted && connect());
}
