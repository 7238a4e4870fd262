"""instructor, unchanged: answers as pydantic models, by tools and by `response_format`."""

import json
import sys

import instructor
import openai
from pydantic import BaseModel


class City(BaseModel):
    name: str
    population: int


client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
modes = instructor.Mode
found = {}
for mode in (modes.TOOLS, modes.JSON_SCHEMA, modes.JSON):
    made = instructor.from_openai(client, mode=mode)
    question = [{"role": "user", "content": "Which city?"}]
    found[mode.name] = made.create(model="helper", messages=question, response_model=City).model_dump()
print(json.dumps(found))
