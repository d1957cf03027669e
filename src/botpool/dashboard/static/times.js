// Times that go on while one looks. The page tells the server's time, so a wrong clock here does no harm.

const ahead = Date.parse(document.body.dataset.now) - Date.now();
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

/** A length of time, in words as dashboard/words.py has them. */
export function elapsed(seconds) {
  const n = Math.max(0, Math.floor(seconds));
  const two = (number) => String(number).padStart(2, "0");
  if (n < 600) return `${Math.floor(n / 60)}:${two(n % 60)}`;
  if (n < 3600) return `${Math.floor(n / 60)} min`;
  if (n < 86400) return `${Math.floor(n / 3600)} h ${two(Math.floor((n % 3600) / 60))} min`;
  return `${Math.floor(n / 86400)} d ${Math.floor((n % 86400) / 3600)} h`;
}

/** The time of day here. */
export const timeOfDay = (date) => clock.format(date);

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Let every time within an element be as it is now. */
export function setTimes(root = document) {
  const now = Date.now() + ahead;
  const at = (element) => Date.parse(element.getAttribute("datetime"));
  for (const element of root.querySelectorAll("time[data-since]")) say(element, elapsed((now - at(element)) / 1000));
  for (const element of root.querySelectorAll("time[data-until]")) {
    const left = (at(element) - now) / 1000;
    say(element, elapsed(left));
    element.parentElement.classList.toggle("urgent", left < 60);
  }
  for (const element of root.querySelectorAll("[data-minutes]")) {
    say(element, String(Math.min(999, Math.max(0, Math.floor((now - Date.parse(element.dataset.minutes)) / 60000)))));
  }
  for (const element of root.querySelectorAll("time[data-clock]")) {
    say(element, clock.format(at(element)));
    if (!element.title) element.title = whole.format(at(element));
  }
  for (const element of root.querySelectorAll("time[data-day]")) {
    say(element, day.format(at(element)));
    if (!element.title) element.title = whole.format(at(element));
  }
}

/** Let the times of the page go on, once a second while it is seen. */
export function tick() {
  setTimes();
  setInterval(() => document.hidden || setTimes(), 1000);
}
