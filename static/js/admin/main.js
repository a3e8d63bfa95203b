/** Wires the console: its tabs, in the order of the rail. `window.parleyAdmin` is there for tests and the curious. */

import { render } from "preact";

import { html } from "../widgets/html.js";
import { Console } from "./frame/console.js";
import { Frame } from "./frame/frame.js";
import { TAB as FIGURES } from "./figures/tab.js";
import { TAB as AUDIT } from "./manage/audit.js";
import { TAB as GROUPS } from "./manage/groups.js";
import { TAB as NOTICE } from "./manage/notice.js";
import { TAB as SETTINGS } from "./manage/settings.js";
import { TAB as SHARES } from "./manage/shares.js";
import { TAB as USERS } from "./manage/users.js";
import { STRIP } from "./health/strip.js";
import { TAB as SERVER } from "./health/tab.js";
import { Search } from "./sessions/search.js";
import { TAB as SESSIONS } from "./sessions/tab.js";

const admin = new Console({ tabs: [SESSIONS, FIGURES, SERVER, USERS, GROUPS, AUDIT, SHARES, NOTICE, SETTINGS], strip: STRIP, Search });
window.parleyAdmin = { admin };
render(html`<${Frame} admin=${admin} />`, document.getElementById("admin"));
admin.start();
