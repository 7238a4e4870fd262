// The client of AG-UI, unchanged: a conversation, a tool of the frontend, an interrupt, a page that comes back.
import { HttpAgent } from '@ag-ui/client'

const url = process.argv[2]
const agentOf = (name, threadId) => new HttpAgent({ url: `${url}/agents/${name}/agui`, threadId })
const user = (content) => ({ id: `u-${content}`, role: 'user', content })
const said = (agent) => agent.messages.filter((one) => one.role === 'assistant').map((one) => one.content ?? '').join('')
const tools = [{ name: 'weather', description: 'The weather.', parameters: {
  type: 'object', properties: { city: { type: 'string' } }, required: ['city'],
} }]

// a frontend tool: the page executes the call and runs again with its result
const page = agentOf('helper', 'page')
page.addMessage(user('What is the weather?'))
let pending = []
await page.runAgent({ runId: 'r1', tools }, { onRunFinishedEvent: (end) => { pending = end.pendingToolCallIds } })
const [call] = page.messages.at(-1).toolCalls
page.addMessage({ id: 't1', role: 'tool', toolCallId: call.id, content: 'sunny in Rome' })
await page.runAgent({ runId: 'r2', tools })
const text = said(page)

// an approval: the run ends with an interrupt, and goes on with the answer
const careful = agentOf('careful', 'office')
careful.addMessage(user('Do it'))
let interrupts = []
await careful.runAgent({ runId: 'r1' }, { onRunFinishedEvent: (end) => { interrupts = end.interrupts } })
const resume = interrupts.map((one) => ({ interruptId: one.id, status: 'resolved', payload: { approved: true } }))
await careful.runAgent({ runId: 'r2', resume })
const results = careful.messages.filter((one) => one.role === 'tool').map((one) => one.content)

// a page that has lost everything asks for a run by its id
const again = agentOf('helper', 'page')
await again.runAgent({ runId: 'r2' })

// a faulty request is an error with a status
let refused = 0
try {
  await agentOf('helper', 'empty').runAgent({ runId: 'r1' })
} catch (error) {
  refused = error.status ?? error.message
}
console.log(JSON.stringify({
  text, pending: pending.length, approved: said(careful), results, reason: interrupts[0].reason,
  again: said(again), refused,
}))
