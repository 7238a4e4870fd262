// OpenAI's SDK for JavaScript, unchanged: runTools, plain and streaming.
import OpenAI from 'openai'

const client = new OpenAI({ baseURL: process.argv[2], apiKey: 'none', maxRetries: 0 })
const weather = {
  type: 'function',
  function: {
    name: 'weather',
    description: 'The weather of a city.',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
    parse: JSON.parse,
    function: ({ city }) => `sunny in ${city}`,
  },
}
const body = { model: 'helper', messages: [{ role: 'user', content: 'What is the weather?' }], tools: [weather] }
const text = await client.chat.completions.runTools(body).finalContent()
const streamed = await client.chat.completions.runTools({ ...body, stream: true }).finalContent()
console.log(JSON.stringify({ text, streamed }))
