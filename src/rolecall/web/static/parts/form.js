// A form made from a JSON Schema: a choice of status and a control for each field, with problems shown at the fields.
import { html, useState } from "./html.js";
import { ActionButton, Checkbox, Field, Problem } from "./controls.js";
import { useDraft } from "./drafts.js";
import { labelOf } from "./format.js";

let made = 0; // numbers the forms, because each form needs its own group of radio buttons
const WHOLE = "answer as JSON"; // the only field of a form whose schema does not list its fields in one place

export function Form({ thread, question, error, submit, more }) {
  const { forms, statusField, head } = question;
  const [group] = useState(() => `status-${++made}`);
  const [chosen, setChosen] = useDraft(thread, head, "chosen", forms.length > 1 ? null : 0);
  const [values, setValues] = useDraft(thread, head, "values", { [WHOLE]: JSON.stringify(question.example, null, 2) });
  const [body, setBody] = useDraft(thread, head, "body", "");
  const [wrong, setWrong] = useState({});
  const form = chosen == null ? null : forms[chosen];
  const fields = form ? fieldsOf(form, statusField) : [];
  const asked = fields.filter(({ schema }) => !("const" in schema));
  const found = { ...problemsByField(error?.problems, fields), ...wrong };
  const rest = (error?.problems || []).filter((one) => !fields.some(({ name }) => isAbout(one, name)));

  const send = async () => {
    const output = form.status != null && statusField ? { [statusField]: form.status } : {};
    const bad = {};
    for (const { name, schema, isNeeded } of fields) {
      try {
        const value = readValue(schema, values[name], isNeeded);
        if (name === WHOLE) Object.assign(output, value);
        else if (value !== undefined) output[name] = value;
        else if (isNeeded && !("const" in schema)) bad[name] = "Needed.";
      } catch (problem) {
        bad[name] = problem.message;
      }
    }
    setWrong(bad);
    if (!Object.keys(bad).length) await submit(output, body);
  };

  return html`<div class="form">
    ${forms.length > 1 ? html`<fieldset class="choices"><legend>${labelOf(statusField || "answer")}</legend>
      ${forms.map((one, at) => html`<label><input type="radio" name=${group} checked=${chosen === at}
        onChange=${() => setChosen(at)} />${one.status}</label>`)}</fieldset>` : null}
    ${asked.map((field) => html`<${Control} key=${`${chosen}${field.name}`} ...${field} value=${values[field.name]}
      error=${found[field.name]} set=${(value) => setValues({ ...values, [field.name]: value })} />`)}
    ${form ? html`<${Field} label="Your report" hint="Free text, in Markdown. The next role reads it.">
      <textarea rows="3" value=${body} onInput=${(event) => setBody(event.target.value)}></textarea></${Field}>` : null}
    ${error && (rest.length || !error.problems?.length) ? html`<${Problem}
      error=${{ message: error.message.split("\n")[0], hint: error.hint, problems: rest }} />` : null}
    <p class="buttons"><${ActionButton} class="main" disabled=${!form} run=${send}>Send</${ActionButton}>${more}</p>
  </div>`;
}

// Returns the fields of a form, required fields first.
function fieldsOf(form, statusField) {
  const listed = form.schema.properties || {};
  const isListed = Object.keys(listed).length && form.required.every((name) => name in listed);
  if (!isListed) return [{ name: WHOLE, schema: { type: "object" }, isNeeded: true }];
  const rank = ({ name, isNeeded }) => (name === statusField ? 2 : isNeeded ? 1 : 0);
  return Object.entries(listed)
    .filter(([name]) => !(form.status != null && name === statusField))
    .map(([name, schema]) => ({ name, schema: withoutNull(schema), isNeeded: form.required.includes(name) }))
    .sort((one, other) => rank(other) - rank(one));
}

// Removes null from a schema that accepts null and one other kind of value. An empty field then means null.
function withoutNull(schema) {
  const types = Array.isArray(schema.type) ? schema.type.map((type) => ({ type })) : null;
  const kinds = schema.anyOf || schema.oneOf || types || [];
  const others = kinds.filter((one) => one.type !== "null");
  if (others.length !== 1) return schema;
  return { ...schema, anyOf: null, oneOf: null, ...others[0], isNullable: others.length < kinds.length };
}

function isAbout(problem, name) {
  return problem.startsWith(`/${name}:`) || problem.startsWith(`/${name}/`) || problem.includes(`"${name}"`);
}

function problemsByField(problems = [], fields) {
  const found = {};
  for (const one of problems) {
    const field = fields.find(({ name }) => isAbout(one, name));
    if (field) found[field.name] ||= one.replace(/^\/[^:]*: /, "");
  }
  return found;
}

function Control({ name, schema, isNeeded, value, error, set }) {
  const label = `${labelOf(name)}${isNeeded ? "" : " (optional)"}`;
  const change = (event) => set(event.target.value);
  let control;
  if (schema.enum) {
    control = html`<select value=${value ?? ""} onChange=${change}><option value="">Choose…</option>
      ${schema.enum.map((one) => html`<option value=${String(one)}>${String(one)}</option>`)}</select>`;
  } else if (schema.type === "boolean") {
    const isOn = value === true;
    return html`<${Checkbox} label=${label} hint=${schema.description} error=${error} value=${isOn} set=${set} />`;
  } else if (schema.type === "integer" || schema.type === "number") {
    const step = schema.type === "integer" ? 1 : "any";
    control = html`<input type="number" class="amount" step=${step} value=${value ?? ""} onInput=${change} />`;
  } else if (schema.type === "string" && schema.maxLength <= 120) {
    control = html`<input value=${value ?? ""} onInput=${change} />`;
  } else {
    const [rows, about] = schema.type === "string" ? [2, ""] : [name === WHOLE ? 8 : 3,
      isLines(schema) ? "one per line" : "JSON"];
    control = html`<textarea rows=${rows} value=${value ?? ""} onInput=${change} placeholder=${about}></textarea>`;
  }
  return html`<${Field} label=${label} hint=${schema.description} error=${error}>${control}</${Field}>`;
}

const isLines = (schema) => schema.type === "array" && (schema.items?.type === "string" || !schema.items);

function readValue(schema, value, isNeeded) {
  if ("const" in schema) return schema.const;
  if (schema.type === "boolean") return value ?? schema.default ?? (isNeeded ? false : undefined);
  if (value === undefined || value === "") return schema.isNullable && isNeeded ? null : undefined;
  if (schema.enum) return schema.enum.find((one) => String(one) === value);
  if (schema.type === "string") return value;
  if (schema.type === "integer" || schema.type === "number") return Number(value);
  if (isLines(schema) && !value.trim().startsWith("[")) {
    return value.split("\n").map((line) => line.trim()).filter(Boolean);
  }
  try {
    return JSON.parse(value);
  } catch {
    if (!schema.type || schema.type.includes("string")) return value; // a plain text also fits the schema
    throw new Error("This must be JSON.");
  }
}
