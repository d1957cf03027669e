// Forms: they ask before they stop something, send without leaving the page, and filter as one types.
import { refresh, show } from "./live.js";

/** Ask, with a button that repeats the verb. Resolves to whether it is to be done. */
function confirmed(question, verb) {
  const dialog = document.getElementById("confirm");
  document.getElementById("confirm-what").textContent = question;
  document.getElementById("confirm-yes").textContent = verb;
  dialog.returnValue = "no";
  dialog.showModal();
  document.getElementById("confirm-yes").focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

function say(text) {
  document.getElementById("said").textContent = text;
}

/** Send a form as a browser would, but stay on the page if the answer is of this page. */
async function send(form, button) {
  const body = new URLSearchParams(new FormData(form, button));
  const action = button?.getAttribute("formaction") || form.getAttribute("action");
  let answer;
  try {
    answer = await fetch(action, { method: "POST", body, headers: { "X-Botpool": "1" } });
  } catch {
    say("botpool does not answer. Nothing was done; try again.");
    return false;
  }
  const html = await answer.text();
  const fresh = new DOMParser().parseFromString(html, "text/html");
  const error = fresh.getElementById("send-error")?.textContent;
  const here = new URL(answer.url).pathname === location.pathname;
  if (answer.ok && !here) {
    // That page was fetched, and has said what was done: it says it again when it is shown.
    sessionStorage.setItem("botpool:said", fresh.getElementById("said")?.textContent || "");
    location.assign(answer.url);
    return true;
  }
  if (!answer.ok && !error) {
    say(fresh.querySelector("main p")?.textContent || "That did not work.");
    return false;
  }
  const shown = document.getElementById("send-error");
  if (shown) shown.textContent = error || "";
  if (answer.ok) {
    say(fresh.getElementById("said")?.textContent || "");
    show(html);
    refresh();
  }
  return answer.ok;
}

function onSubmit(event) {
  const form = event.target;
  if (form.method !== "post" || form.closest(".top")) return;
  const button = event.submitter;
  const { question, verb } = button?.dataset.question ? button.dataset : form.dataset;
  // An answer that shows a secret is a page of its own.
  const plain = form.matches("[data-plain]");
  if (plain && !question) return;
  event.preventDefault();
  (async () => {
    if (question && !(await confirmed(question, verb))) return;
    if (plain) return void form.submit();
    if (button) button.disabled = true;
    const done = await send(form, button);
    if (button) button.disabled = false;
    if (done && form.matches("[data-send]")) {
      form.querySelector("#meeting-url").value = "";
      recognise();
      form.querySelector("#meeting-url").focus();
    }
    if (done && form.matches("[data-select]")) {
      for (const box of form.querySelectorAll("input[type=checkbox]")) box.checked = false;
      count();
    }
  })();
}

// Which platforms the pasted URLs belong to, by the forms that the server has.
function recognise() {
  const field = document.getElementById("meeting-url");
  if (!field) return;
  const forms = JSON.parse(field.dataset.forms);
  const found = field.value.split(/\s+/).filter(Boolean).map((text) => {
    let url;
    try { url = new URL(text); } catch { return null; }
    if (url.protocol !== "https:") return null;
    for (const [platform, host, path, anyCase] of forms) {
      if (new RegExp(`^(?:${host})$`).test(url.hostname) && new RegExp(`^(?:${path})$`, anyCase ? "i" : "").test(url.pathname)) return platform;
    }
    return null;
  });
  const chip = document.getElementById("recognised");
  const known = [...new Set(found.filter(Boolean))];
  const unknown = found.filter((each) => !each).length;
  chip.classList.toggle("unknown", unknown > 0);
  chip.textContent = unknown ? (found.length > 1 ? `${unknown} not recognised` : "not recognised") : found.length > 1 ? `${found.length} · ${known.join(", ")}` : known[0] || "";
}

// How many are selected, so that one knows what a button does.
function count() {
  const form = document.querySelector("[data-select]");
  if (!form || !form.querySelector("[data-selected]")) return;
  const boxes = [...form.querySelectorAll("input[name=bot]")];
  const chosen = boxes.filter((box) => box.checked).length;
  form.querySelector("[data-count]").textContent = chosen ? `${chosen} selected:` : "Select bots to";
  for (const button of form.querySelectorAll("[data-selected] button")) {
    button.disabled = !chosen;
    if (button.dataset.verb) button.dataset.question = `Stop ${chosen === 1 ? "1 bot" : `${chosen} bots`}? Those in a call leave it.`;
  }
  const all = form.querySelector("[data-all]");
  if (all) {
    all.checked = chosen > 0 && chosen === boxes.length;
    all.indeterminate = chosen > 0 && chosen < boxes.length;
  }
}

function filter(form) {
  const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  history.replaceState(null, "", `${form.getAttribute("action")}?${query}`);
  refresh();
}

/** Take over the forms of the page. */
export function followForms() {
  const before = sessionStorage.getItem("botpool:said");
  sessionStorage.removeItem("botpool:said");
  if (before) say(before);
  document.addEventListener("submit", onSubmit);
  const field = document.getElementById("meeting-url");
  if (field) {
    field.addEventListener("input", recognise);
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey) return;
      event.preventDefault();
      field.form.requestSubmit(field.form.querySelector("button.primary"));
    });
    recognise();
  }
  for (const form of document.querySelectorAll("[data-filter]")) {
    let timer = 0;
    form.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => filter(form), 200);
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      filter(form);
    });
  }
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) {
      for (const box of document.querySelectorAll("[data-select] input[name=bot]")) box.checked = event.target.checked;
    }
    count();
  });
  document.addEventListener("botpool:shown", count);
  count();
}
