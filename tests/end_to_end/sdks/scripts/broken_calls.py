"""Calls of OpenAI's Python client that all break off once. Runs in the client's environment.

    python broken_calls.py COUNT BASE_URL TOKEN

The client itself repeats what breaks. A line of JSON says what each call was answered.
"""

import asyncio
import json
import sys

from openai import AsyncOpenAI


async def main(count, url, token):
    client = AsyncOpenAI(base_url=url, api_key=token)
    model = (await client.models.list()).data[0].id

    async def call(number):
        ask = [{"role": "user", "content": f"t{number:05} "}]
        answer = await client.chat.completions.create(
            model=model, messages=ask, max_tokens=400, temperature=0
        )
        print(json.dumps({"name": str(number), "problem": answer.choices[0].message.content}))

    await asyncio.gather(*(call(number) for number in range(1, int(count) + 1)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
