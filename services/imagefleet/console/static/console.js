// What pages do by themselves: times in the reader's zone, dialogs, following live, charts, the theme.
// No page needs it to be read, and none to act but what a dialog asks.
"use strict";

(() => {
  const AGES = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // --- times

  const two = (number) => String(number).padStart(2, "0");

  function local(at) {
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
    return new Date().toDateString() === at.toDateString() ? time : `${day} ${time}`;
  }

  function age(at) {
    const seconds = Math.round((Date.now() - at) / 1000);
    const [unit, name] = AGES.find(([unit]) => Math.abs(seconds) >= unit) ?? [1, "s"];
    const count = Math.floor(Math.abs(seconds) / unit);
    return seconds < 0 ? `in ${count} ${name}` : `${count} ${name} ago`;
  }

  function tell(time) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) return;
    const text = "ago" in time.dataset ? age(at) : local(at);
    if (time.textContent !== text) time.textContent = text;
    const title = `${at.toISOString()} (${local(at)} here)`;
    if (time.title !== title) time.title = title;
  }

  const tellAll = () => all("time").forEach(tell);

  // --- charts: data-chart is {"x": [seconds], "series": [{"label", "values", "kind"}], "unit"}

  const drawn = new WeakMap();

  function moments(values) {
    const days = values.length > 1 && values.at(-1) - values[0] > 2 * 86400;
    return values.map((value) => {
      const at = new Date(value * 1000);
      return days ? `${at.getMonth() + 1}-${two(at.getDate())}` : `${two(at.getHours())}:${two(at.getMinutes())}`;
    });
  }

  function draw(place) {
    const told = JSON.parse(place.dataset.chart);
    const data = [told.x, ...told.series.map((each) => each.values)];
    const style = getComputedStyle(place);
    const colour = (name) => style.getPropertyValue(name).trim();
    const kept = drawn.get(place);
    if (kept) kept.destroy();
    const axis = {
      stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1 }, font: "11px system-ui", size: 46,
    };
    drawn.set(place, new uPlot({
      width: place.clientWidth, height: 150,
      legend: { live: false, show: told.series.length > 1 },
      cursor: { y: false },
      scales: { y: { range: (_plot, _least, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [{ ...axis, size: 26, space: 64, values: (_plot, values) => moments(values) }, { ...axis, values: (_plot, values) => values.map((v) => `${v}${told.unit ?? ""}`) }],
      series: [{}, ...told.series.map((each) => ({
        label: each.label, stroke: colour(`--${each.kind}`), width: 1.5, points: { show: false },
        dash: each.dash ? [4, 3] : undefined,
      }))],
    }, data, place));
  }

  const drawAll = () => all("[data-chart]").forEach((place) => { if (!drawn.has(place)) draw(place); });

  // --- what is new on the page

  new MutationObserver((changes) => {
    for (const change of changes) {
      const element = change.target.nodeType === Node.ELEMENT_NODE ? change.target : change.target.parentElement;
      if (change.type === "attributes") {
        if (change.attributeName === "data-chart") draw(element);
        else if (element instanceof HTMLTimeElement) tell(element);
        continue;
      }
      if (element instanceof HTMLTimeElement) { tell(element); continue; }
      if (element?.closest(".uplot")) continue;
      for (const node of change.addedNodes) {
        if (node.nodeType !== Node.ELEMENT_NODE) continue;
        if (node instanceof HTMLTimeElement) tell(node);
        all("time", node).forEach(tell);
        all("[data-chart]", node).forEach((place) => { if (!drawn.has(place)) draw(place); });
        if (node.matches("[data-chart]") && !drawn.has(node)) draw(node);
      }
    }
  }).observe(document.body, {
    subtree: true, childList: true, characterData: true,
    attributes: true, attributeFilter: ["data-chart", "datetime"],
  });
  tellAll();
  drawAll();
  setInterval(tellAll, 1000);
  let resized = 0;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(() => all("[data-chart]").forEach(draw), 150);
  });

  // --- dialogs, and forms that are sent once

  document.addEventListener("click", (click) => {
    const opens = click.target.closest("[data-opens]");
    if (opens) {
      const dialog = document.getElementById(opens.dataset.opens);
      dialog?.showModal();
      dialog?.querySelector("[autofocus]")?.focus();
    }
    if (click.target.closest("[data-closes]")) click.target.closest("dialog")?.close();
    if (click.target instanceof HTMLDialogElement) click.target.close(); // beside it
  });

  document.addEventListener("submit", (submit) => {
    const form = submit.target;
    if (form.method !== "post" || form.matches("[hx-post]")) return;
    if ("sent" in form.dataset) { submit.preventDefault(); return; }
    form.dataset.sent = "";
    all("button", form).forEach((button) => button.setAttribute("aria-disabled", "true"));
  });
  addEventListener("pageshow", () => all("form[data-sent]").forEach((form) => {
    delete form.dataset.sent;
    all("button", form).forEach((button) => button.removeAttribute("aria-disabled"));
  }));

  // --- choosing rows: [data-choose] is a box, [data-choose-all] all of them, [data-chosen] how many

  function chosen() {
    const boxes = all("[data-choose]");
    const count = boxes.filter((box) => box.checked).length;
    all("[data-chosen]").forEach((place) => { place.textContent = String(count); });
    all("[data-needs-chosen]").forEach((button) => { button.disabled = count === 0; });
    all("[data-choose-all]").forEach((box) => {
      box.checked = count > 0 && count === boxes.length;
      box.indeterminate = count > 0 && count < boxes.length;
    });
  }
  document.addEventListener("change", (change) => {
    if (change.target.matches("[data-choose-all]")) {
      all("[data-choose]").forEach((box) => { box.checked = change.target.checked; });
    }
    if (change.target.matches("[data-choose], [data-choose-all]")) chosen();
    if (change.target.matches("[data-submits]")) change.target.form.requestSubmit();
  });
  chosen();

  // --- a focal point: [data-focal] is the picture, [name=x] and [name=y] of its form are the point

  function mark(place) {
    const [x, y] = ["x", "y"].map((name) => Number(place.closest("form").elements[name].value));
    const spot = place.querySelector(".mark");
    spot.style.left = `${x * 100}%`;
    spot.style.top = `${y * 100}%`;
  }
  document.addEventListener("click", (click) => {
    const place = click.target.closest("[data-focal]");
    if (!place) return;
    const box = place.getBoundingClientRect();
    const fields = place.closest("form").elements;
    fields.x.value = Math.min(1, Math.max(0, (click.clientX - box.left) / box.width)).toFixed(3);
    fields.y.value = Math.min(1, Math.max(0, (click.clientY - box.top) / box.height)).toFixed(3);
    mark(place);
  });
  document.addEventListener("input", (input) => {
    const place = input.target.form?.querySelector("[data-focal]");
    if (place) mark(place);
  });
  all("[data-focal]").forEach(mark);

  // --- forms that send a file: as it is, beside what the address says of it

  document.addEventListener("submit", async (submit) => {
    const form = submit.target;
    if (!form.matches("[data-sends-file]") || submit.defaultPrevented) return;
    submit.preventDefault();
    const said = form.querySelector("[data-refused]");
    said.textContent = "";
    const address = new URL(form.action);
    address.search = new URLSearchParams(new FormData(form));
    try {
      const answer = await fetch(address, {
        method: "POST", body: form.querySelector("[data-file]").files[0],
        headers: { "X-CSRF-Token": form.dataset.csrf, "HX-Request": "true", "Content-Type": "application/octet-stream" },
      });
      const there = answer.headers.get("HX-Redirect");
      if (there) { location.assign(there); return; }
      said.textContent = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("p")?.textContent ?? "";
    } catch {
      said.textContent = "The console does not answer, or it did not read the file to its end. Nothing was changed.";
    }
    delete form.dataset.sent;
    all("button", form).forEach((button) => button.removeAttribute("aria-disabled"));
  });

  // --- the theme: as the system has it, until somebody chooses

  const themes = document.getElementById("theme");
  themes?.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    const secure = location.protocol === "https:" ? "; Secure" : "";
    document.cookie = `imagefleet-theme=${root.dataset.theme}; Path=/; Max-Age=31536000; SameSite=Strict${secure}`;
    all("[data-chart]").forEach(draw);
  });

  // --- the drawer: what is open beside a list, with an address of its own

  const drawer = document.getElementById("drawer");
  let shown = location.pathname + location.search;
  let opener = null; // by its address: the list may be another by then

  function turned(address) {
    history.pushState(null, "", address);
    shown = address;
    all("a[hx-target='#drawer']").forEach((link) => {
      if (link.getAttribute("hx-get") === address) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    });
    follow();
  }

  function shut() {
    const address = drawer?.querySelector("[data-shuts-drawer]")?.getAttribute("href");
    if (!address) return;
    drawer.replaceChildren();
    turned(address);
    all("a[hx-target='#drawer']").find((link) => link.getAttribute("href") === opener)?.focus();
  }

  document.addEventListener("htmx:after:swap", (swap) => {
    const { target, sourceElement, request } = swap.detail.ctx;
    if (!drawer || target !== drawer || request?.method !== "GET") return;
    opener = sourceElement.getAttribute("href");
    turned(sourceElement.getAttribute("hx-get"));
    drawer.scrollTop = 0;
    drawer.focus();
  });
  document.addEventListener("click", (click) => {
    if (!click.target.closest("[data-shuts-drawer]")) return;
    click.preventDefault();
    shut();
  });
  document.addEventListener("keydown", (key) => {
    if (key.key === "Escape" && !document.querySelector("dialog[open]")) shut();
  });
  addEventListener("popstate", () => { // back and forth, but not to a place of this page
    if (location.pathname + location.search !== shown) location.reload();
  });

  // --- following the page live: the server sends the blocks that changed

  const button = document.getElementById("follow");
  const trouble = document.getElementById("trouble");
  const pending = new Map();
  let stream = null;
  let paused = localStorage.getItem("imagefleet-paused") === "yes";

  const busy = (place) => place.querySelector("dialog[open], [data-choose]:checked")
    || (place.contains(document.activeElement) && document.activeElement.matches("input, textarea, select"));

  function put(place, text) {
    if (busy(place)) { pending.set(place, text); return; }
    pending.delete(place);
    htmx.swap({ target: place, text, swap: "innerMorph" });
  }

  const putPending = () => setTimeout(() => { for (const [place, text] of [...pending]) put(place, text); });
  document.addEventListener("close", putPending, true);
  document.addEventListener("focusout", putPending);

  function state(name, text) {
    if (!button) return;
    button.dataset.state = name;
    button.setAttribute("aria-pressed", String(name !== "paused"));
    button.querySelector("span").textContent = text;
  }

  function stop() {
    stream?.close();
    stream = null;
  }

  function follow() {
    stop();
    if (paused) { state("paused", "Paused"); return; }
    if (document.hidden) return;
    state("waiting", "Connecting");
    stream = new EventSource(location.pathname + location.search);
    stream.addEventListener("open", () => state("live", "Live"));
    stream.addEventListener("error", () => {
      state("waiting", stream?.readyState === EventSource.CLOSED ? "Not live" : "Connecting");
    });
    stream.addEventListener("over", () => { stop(); location.reload(); });
    stream.addEventListener("trouble", (event) => {
      if (trouble && trouble.textContent !== event.data) trouble.textContent = event.data;
    });
    for (const place of all("[data-live]")) stream.addEventListener(place.id, (event) => put(place, event.data));
  }

  if (button && document.querySelector("[data-live]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      paused = !paused;
      localStorage.setItem("imagefleet-paused", paused ? "yes" : "no");
      follow();
    });
    document.addEventListener("visibilitychange", () => (document.hidden ? stop() : follow()));
    addEventListener("pagehide", stop);
    follow();
  }
})();
