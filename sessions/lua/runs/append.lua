-- Stores and publishes entries of a run under its fence and renews the lease: the proof that nothing is stored
-- after an end or by an old owner. With no entries it only renews and sets fields.
-- KEYS r e tok
-- ok cancel lease_until | lost fence owner | ended status reason sequence_number engine text_length fence
-- gap sequence_number cancel lease_until num_tokens | gone
read_args({
  'channel', 'response_id', 'fence',
  'first', -- the number of the first entry
  'lease_ms',
  'status', -- the new one, or ''
  'token_ids', -- bytes
  'text_length', -- or ''
}, {
  'fields', -- names and values
  'entries',
})
local r, e, tok = unpack(KEYS)
local fence, status, sequence_number, cancel, num_tokens, text_length = unpack(redis.call('HMGET', r, 'fence', 'status',
  'sequence_number', 'cancel', 'num_tokens', 'text_length'))
if not fence then return {'gone'} end
if fence ~= args.fence then return {'lost', tonumber(fence), redis.call('HGET', r, 'owner')} end
if not is_live(status) then return ended(r) end
local entries, count = args.entries, #args.entries
local last = sequence_number + count
if count > 0 and tonumber(args.first) ~= sequence_number + 1 then
  local lease_until = tonumber(redis.call('HGET', r, 'lease_until'))
  return {'gap', tonumber(sequence_number), tonumber(cancel), lease_until, tonumber(num_tokens)}
end

local now = now_ms()
local lease_until = now + args.lease_ms
for i = 1, count do
  redis.call('XADD', e, (sequence_number + i) .. '-0', 'd', entries[i])
end
if args.token_ids ~= '' then
  redis.call('APPEND', tok, args.token_ids)
  if num_tokens == '0' then redis.call('HSET', r, 'first_token_at', now) end
  num_tokens = (num_tokens or 0) + #args.token_ids / 4
end
if status == 'queued' and args.status == 'in_progress' then redis.call('HSET', r, 'started_at', now) end
if args.status ~= '' then status = args.status end
if args.text_length ~= '' then text_length = args.text_length end
redis.call('HSET', r, 'lease_until', lease_until, 'sequence_number', last, 'status', status,
  'num_tokens', num_tokens or 0, 'text_length', text_length or 0, unpack(args.fields))
if count > 0 then
  publish_response(args.response_id, args.fence, sequence_number + 1, last, table.concat(entries, '\n'))
end
return {'ok', tonumber(cancel), lease_until}
