// Sort a table by a column on a click on its header; a second click reverses the order. A field above a long table shows
// the rows that contain all words that are typed into it.
const long = 12
const number = /^(?:exactly |above |below |[<>≤≥] ?)?([+-]?[\d.]+(?:e[+-]?\d+)?)(?=$|[ \[%])/
const key = row => i => {
  const text = row.cells[i].textContent.replaceAll(",", "")
  const found = text.match(number)
  return found ? Number(found[1]) : text
}
const compare = (a, b) =>
  typeof a === "number" && typeof b === "number" ? a - b
    : typeof a !== typeof b ? (typeof a === "number" ? -1 : 1)
      : a.localeCompare(b, undefined, {numeric: true})
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells]
  if (body.rows.length < 2) continue
  if (body.rows.length >= long) {
    const field = document.createElement("input")
    Object.assign(field, {type: "search", placeholder: "filter rows", ariaLabel: "filter rows"})
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/)
      for (const row of body.rows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word))
    })
    table.parentElement.before(field)
  }
  heads.forEach((head, i) => {
    const button = document.createElement("button")
    button.append(...head.childNodes)
    head.append(button)
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending"
      heads.forEach(other => other.removeAttribute("aria-sort"))
      head.setAttribute("aria-sort", down ? "descending" : "ascending")
      const rows = [...body.rows].sort((a, b) => compare(key(a)(i), key(b)(i)))
      body.append(...(down ? rows.reverse() : rows))
    })
  })
}
