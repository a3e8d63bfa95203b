-- Stores and publishes entries of a run under its fence and renews the lease: the proof that nothing is stored
-- after an end or by an old owner. With no entries it only renews and sets fields.
-- KEYS r e tok
-- ARGV 1 pub 2 live 3 rid 4 fence 5 first 6 lease_ms 7 new status or '' 8 token bytes 9 text_length or ''
--      10 number of field arguments 11.. field pairs, then entries
-- ok cancel lease_until | lost fence owner | ended status reason sequence_number engine text_length fence
-- gap sequence_number cancel lease_until num_tokens | gone
local r = redis.call('HMGET', KEYS[1], 'fence', 'status', 'sequence_number', 'cancel', 'owner', 'reason', 'engine',
  'text_length', 'lease_until', 'num_tokens')
if not r[1] then return {'gone'} end
if r[1] ~= ARGV[4] then return {'lost', tonumber(r[1]), r[5]} end
if not is_live(r[2]) then
  return {'ended', r[2], r[6], tonumber(r[3]), r[7], tonumber(r[8]), tonumber(r[1])}
end
local num_fields = tonumber(ARGV[10])
local first, start = tonumber(ARGV[5]), 11 + num_fields
local count = #ARGV - start + 1
if count > 0 and first ~= r[3] + 1 then
  return {'gap', tonumber(r[3]), tonumber(r[4]), tonumber(r[9]), tonumber(r[10])}
end

local now = now_ms()
local lease_until = now + ARGV[6]
for i = 1, count do
  redis.call('XADD', KEYS[2], (first + i - 1) .. '-0', 'd', ARGV[start + i - 1])
end
redis.call('HSET', KEYS[1], 'lease_until', lease_until)
if num_fields > 0 then redis.call('HSET', KEYS[1], unpack(ARGV, 11, 10 + num_fields)) end
if ARGV[7] ~= '' then
  redis.call('HSET', KEYS[1], 'status', ARGV[7])
  if r[2] == 'queued' and ARGV[7] == 'in_progress' then redis.call('HSET', KEYS[1], 'started_at', now) end
end
if ARGV[9] ~= '' then redis.call('HSET', KEYS[1], 'text_length', ARGV[9]) end
if ARGV[8] ~= '' then
  redis.call('APPEND', KEYS[3], ARGV[8])
  redis.call('HINCRBY', KEYS[1], 'num_tokens', #ARGV[8] / 4)
  if r[10] == '0' then redis.call('HSET', KEYS[1], 'first_token_at', now) end
end
if count > 0 then
  local last = first + count - 1
  redis.call('HSET', KEYS[1], 'sequence_number', last)
  publish_response(ARGV[3], ARGV[4], first, last, table.concat(ARGV, '\n', start))
end
return {'ok', tonumber(r[4]), lease_until}
