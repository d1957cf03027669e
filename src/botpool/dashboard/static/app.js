// What makes a page live. Every page works without it; see dashboard/__init__.py.
import { followForms } from "./forms.js";
import { follow } from "./live.js";
import { followLogs } from "./logs.js";
import { tick } from "./times.js";

// A table that is wider than the screen can be scrolled by keyboard; others are no stop on the way.
function reachScrolled() {
  for (const box of document.querySelectorAll(".scroll")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

document.documentElement.classList.add("scripted");
tick();
followForms();
followLogs();
follow();
reachScrolled();
document.addEventListener("botpool:shown", reachScrolled);
window.addEventListener("resize", reachScrolled);
