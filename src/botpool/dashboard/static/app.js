// What makes a page live. Every page works without it; see dashboard/__init__.py.
import { followForms } from "./forms.js";
import { follow } from "./live.js";
import { followLogs } from "./logs.js";
import { tick } from "./times.js";

document.documentElement.classList.add("scripted");
tick();
followForms();
followLogs();
follow();
