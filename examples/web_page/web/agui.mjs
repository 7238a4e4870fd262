/** Asks an agent by AG-UI and yields the text of its answer as it arrives. Works in browsers and in Node. */
export async function* ask(url, threadId, content) {
  const body = {
    threadId,
    runId: crypto.randomUUID(),
    messages: [{ id: crypto.randomUUID(), role: 'user', content }],
  }
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', accept: 'text/event-stream' },
    body: JSON.stringify(body),
  })
  if (!response.ok) throw new Error(`The server answered ${response.status}.`)
  for await (const event of events(response.body)) {
    if (event.type === 'TEXT_MESSAGE_CONTENT') yield event.delta
    if (event.type === 'RUN_ERROR') throw new Error(event.message)
  }
}

/** Yields the events of a server-sent event stream, whose lines `data: …` are JSON. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  while (true) {
    const { done, value } = await reader.read()
    if (done) return
    const blocks = (rest + value).split('\n\n')
    rest = blocks.pop()
    for (const block of blocks) {
      const data = block.split('\n').filter((line) => line.startsWith('data: ')).map((line) => line.slice(6))
      if (data.length) yield JSON.parse(data.join('\n'))
    }
  }
}
