// Vercel's AI SDK, unchanged: generateObject, and tool loops of generateText and streamText.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateObject, generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'

const provider = createOpenAICompatible({
  name: 'astromesh', baseURL: process.argv[2], apiKey: 'none', supportsStructuredOutputs: true,
})
const model = provider('helper')
const weather = tool({
  description: 'The weather of a city.',
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `sunny in ${city}`,
})
const loop = { model, prompt: 'What is the weather?', tools: { weather }, stopWhen: stepCountIs(5), maxRetries: 0 }

const { object } = await generateObject({
  model, prompt: 'Which city?', maxRetries: 0, schema: z.object({ name: z.string(), population: z.number() }),
})
const { text, steps } = await generateText(loop)
const streamed = await streamText(loop).text
console.log(JSON.stringify({ object, text, steps: steps.length, streamed }))
