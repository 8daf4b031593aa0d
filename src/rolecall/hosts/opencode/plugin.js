// Rolecall in OpenCode. It registers the MCP server, runs `rolecall hook opencode EVENT` for each event, waits for the
// answer and carries it out. The hook decides what an event means.
// A failing hook stops nothing, but each failure is reported: in the log, on the screen and to the model.
import { spawn } from "node:child_process"

const SERVER = "@SERVER@"
const HOOKS = "@HOOKS@"
const PATIENCE = 10_000 // milliseconds a hook may take

export const Rolecall = async ({ client, directory }) => {
  const places = new Map() // session -> the user's session it belongs to, and its agent if it is not the user's own
  const begun = new Set() // the user's sessions that this process has seen
  const typed = new Map() // session -> the command that its next message was made from
  const settled = new Set() // calls that failed or were blocked, and need no further report
  const owed = new Map() // call -> the text to add to its result
  const summed = new Map() // session being compacted -> the text to repeat afterwards
  const restored = new Map() // compacted session -> the same text, until the user's next message includes it
  let complaint = ""
  let queue = Promise.resolve() // one hook at a time, in the order of the events

  const show = async (variant, message) => {
    const level = variant === "error" ? "error" : "warn"
    const log = client.app.log({ body: { service: "rolecall", level, message } })
    const toast = client.tui.showToast({ body: { title: "Rolecall", message, variant } })
    await Promise.allSettled([log, toast])
  }

  const place = async (id) => {
    if (!places.has(id)) {
      const { data } = await client.session.get({ path: { id } })
      if (!data) throw new Error(`OpenCode does not know the session ${id}`)
      const above = data.parentID ? await place(data.parentID) : undefined
      places.set(id, above ? { session: above.session, child: id, agent: data.agent ?? "" } : { session: id })
    }
    return places.get(id)
  }

  const tell = (event, id, more = {}) => {
    queue = queue.then(async () => {
      try {
        const answer = await run(HOOKS[event], { ...(await place(id)), cwd: directory, ...more })
        if (answer.notice) await show("warning", answer.notice)
        return answer
      } catch (error) {
        complaint = `Rolecall's hook for ${event} failed; until it works again it guards nothing. ${error.message}`
        await show("error", complaint)
        return {}
      }
    })
    return queue
  }

  const begin = async (id) => {
    if (begun.has(id)) return {}
    begun.add(id)
    const { data } = await client.session.messages({ path: { id }, query: { limit: 1 } })
    return tell("session.created", id, { isNew: !data?.length })
  }

  const failed = async (part) => {
    const { tool, callID, sessionID, state } = part
    if (settled.has(callID)) return
    settled.add(callID)
    await tell("tool.execute.after", sessionID, { tool, args: state.input, error: String(state.error) })
    if (tool === "task" && state.metadata?.sessionId)
      await tell("subagent.completed", state.metadata.sessionId, { output: String(state.error) })
  }

  return {
    config: async (config) => {
      config.mcp = { rolecall: { type: "local", command: SERVER, enabled: true }, ...config.mcp }
    },

    "command.execute.before": async (input) => {
      typed.set(input.sessionID, `/${input.command} ${input.arguments}`.trim())
    },

    "chat.message": async (input, output) => {
      const id = input.sessionID
      const words = output.parts.filter((part) => part.type === "text" && !part.synthetic).map((part) => part.text)
      const text = typed.get(id) ?? words.join("\n")
      typed.delete(id)
      const isUsers = await place(id).then((found) => !found.child, () => true)
      const started = isUsers ? await begin(id) : {}
      const answer = await tell("chat.message", id, { text, message: output.message.id })
      const before = restored.get(id)
      restored.delete(id)
      const last = output.parts.at(-1)?.id ?? "prt_" // parts are sorted by their ids
      for (const [index, said] of [started.context, before, answer.context, complaint].entries()) {
        const part = { id: `${last}${index}`, sessionID: id, messageID: output.message.id }
        if (said) output.parts.push({ ...part, type: "text", text: said, synthetic: true })
      }
      complaint = ""
    },

    "tool.execute.before": async (input, output) => {
      const answer = await tell("tool.execute.before", input.sessionID, { tool: input.tool, args: output.args })
      if (answer.context) owed.set(input.callID, answer.context)
      if (!answer.block) return
      settled.add(input.callID)
      throw new Error(answer.block)
    },

    "tool.execute.after": async (input, output) => {
      const said = [owed.get(input.callID)]
      owed.delete(input.callID)
      said.push((await tell("tool.execute.after", input.sessionID, { tool: input.tool, args: input.args })).context)
      const child = input.tool === "task" ? output?.metadata?.sessionId : undefined
      if (child) said.push((await tell("subagent.completed", child, { output: output.output })).context)
      for (const text of said.filter(Boolean)) {
        if (Array.isArray(output?.content)) output.content.push({ type: "text", text })
        else if (output) output.output = `${output.output ?? ""}\n\n${text}`
      }
    },

    "experimental.session.compacting": async (input) => {
      const { context } = await tell("experimental.session.compacting", input.sessionID)
      if (context) summed.set(input.sessionID, context)
    },

    "experimental.chat.system.transform": async (input, output) => {
      if (restored.has(input.sessionID)) output.system.push(restored.get(input.sessionID))
    },

    event: async ({ event }) => {
      const { type, properties } = event
      const id = properties?.sessionID ?? properties?.info?.id
      const part = type === "message.part.updated" ? properties.part : undefined
      if (part?.type === "tool" && part.state.status === "error") await failed(part)
      if (type === "session.compacted" && summed.has(id)) {
        restored.set(id, summed.get(id))
        summed.delete(id)
      }
      if (type === "session.idle" && begun.has(id)) await tell(type, id)
      if (type === "session.deleted" && begun.delete(id)) await tell(type, id)
    },

    dispose: async () => {
      for (const id of begun) await tell("dispose", id)
    },
  }
}

const run = ([program, ...words], payload) =>
  new Promise((resolve, reject) => {
    const child = spawn(program, words, { cwd: payload.cwd })
    const told = { stdout: "", stderr: "" }
    const limit = setTimeout(() => {
      child.kill("SIGKILL")
      reject(new Error(`It gave no answer within ${PATIENCE / 1000} seconds.`))
    }, PATIENCE)
    for (const name of ["stdout", "stderr"]) child[name].setEncoding("utf8").on("data", (text) => (told[name] += text))
    child.stdin.on("error", () => {}) // the hook need not read all input; only its exit counts
    child.on("error", (error) => (clearTimeout(limit), reject(error)))
    child.on("close", (code) => {
      clearTimeout(limit)
      try {
        if (code !== 0) throw new Error(told.stderr.trim() || `It ended with the code ${code}.`)
        resolve(told.stdout.trim() ? JSON.parse(told.stdout) : {})
      } catch (error) {
        reject(error)
      }
    })
    child.stdin.end(JSON.stringify(payload))
  })
