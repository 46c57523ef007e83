(() => {
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    const value = (row, i) => row.cells[i].textContent.trim();
    heads.forEach((head, i) => head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach(h => h.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const number = head.classList.contains("number");
      const rows = [...body.rows].map((row, place) => ({ row, place, key: number ? parseFloat(value(row, i)) : value(row, i) }));
      const missing = k => number && Number.isNaN(k);
      rows.sort((a, b) => {
        if (missing(a.key) || missing(b.key)) return missing(a.key) - missing(b.key) || a.place - b.place;
        const order = number ? a.key - b.key : a.key.localeCompare(b.key, undefined, { numeric: true });
        return (up ? order : -order) || a.place - b.place;
      });
      body.append(...rows.map(r => r.row));
    }));
    const controls = document.querySelector(`.controls[data-for="${table.id}"]`);
    if (!controls) continue;
    const field = name => controls.querySelector(`[data-filter="${name}"]`);
    const filter = () => {
      const split = field("split")?.value ?? "", wrong = field("wrong")?.checked, text = field("text").value.toLowerCase();
      let shown = 0, errors = 0;
      for (const row of body.rows) {
        row.hidden = (split && row.dataset.split !== split) || (wrong && row.dataset.wrong === undefined)
          || (text && !row.cells[0].textContent.toLowerCase().includes(text));
        if (!row.hidden) { shown++; if (row.dataset.wrong !== undefined) errors++; }
      }
      controls.querySelector(".count").textContent = `${shown.toLocaleString("en")} bags` + (field("wrong") ? `, ${errors.toLocaleString("en")} wrong` : "");
    };
    controls.addEventListener("input", filter);
    filter();
  }
})();
