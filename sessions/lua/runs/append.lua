-- Stores and publishes entries of runs under their fences and renews their leases: the proof that nothing is stored
-- after an end or by an old owner. A run without entries is only renewed, and gets its fields. What is refused to one
-- run, or fails in it, changes nothing for the others.
-- KEYS r e tok of each run
-- ok is_denied replies; is_denied: our user may not count who listens; of each run, in their order, one of
--   ok cancel lease_until | lost fence owner | ended status reason sequence_number engine text_length fence
--   gap sequence_number cancel lease_until num_tokens | gone | error message
read_args({
  'lease_ms',
  'feed_channel', -- one that the caller's feed alone has subscribed; '': publish everything
  'token_ids', -- bytes, of all runs
}, {
  'channels', -- of each run
  -- of each run, in a string since each argument costs: response_id fence first status text_length own_listeners
  -- num_fields num_entries token_bytes. `first` is the number of the first entry, `status` the new one or '-',
  -- `text_length` may be '-', `own_listeners` says how many of the channel's are the caller's feed: 1 or 0.
  'heads',
  'fields', -- names and values, of all runs
  'entries', -- of all runs
})

-- Who listens to each channel besides the caller, which knows what it writes. Only a server that is seen to count the
-- caller's feed is believed: not one behind a proxy, or while that feed is being connected again.
local counts
if args.feed_channel ~= '' and #args.entries > 0 then
  counts = redis.pcall('PUBSUB', 'NUMSUB', args.feed_channel, unpack(args.channels))
end
local is_counted = counts and not counts.err and counts[2] == 1

local now
local function append(number, head, token_ids, fields, entries)
  local rid, its_fence, first, new_status, new_length, own_listeners = unpack(head)
  local r, e, tok = KEYS[3 * number - 2], KEYS[3 * number - 1], KEYS[3 * number]
  local fence, status, sequence_number, cancel, num_tokens, text_length = unpack(redis.call('HMGET', r, 'fence',
    'status', 'sequence_number', 'cancel', 'num_tokens', 'text_length'))
  if not fence then return {'gone'} end
  if fence ~= its_fence then return {'lost', tonumber(fence), redis.call('HGET', r, 'owner')} end
  if not is_live(status) then return ended(r) end
  local count = #entries
  local last = sequence_number + count
  if count > 0 and tonumber(first) ~= sequence_number + 1 then
    local lease_until = tonumber(redis.call('HGET', r, 'lease_until'))
    return {'gap', tonumber(sequence_number), tonumber(cancel), lease_until, tonumber(num_tokens)}
  end

  now = now or now_ms()
  local lease_until = now + args.lease_ms
  for i = 1, count do
    redis.call('XADD', e, (sequence_number + i) .. '-0', 'd', entries[i])
  end
  if token_ids ~= '' then
    redis.call('APPEND', tok, token_ids)
    if num_tokens == '0' then redis.call('HSET', r, 'first_token_at', now) end
    num_tokens = (num_tokens or 0) + #token_ids / 4
  end
  if status == 'queued' and new_status == 'in_progress' then redis.call('HSET', r, 'started_at', now) end
  if new_status ~= '-' and new_status ~= status then redis.call('HSET', r, 'status', new_status) end
  if new_length ~= '-' then text_length = new_length end
  redis.call('HSET', r, 'lease_until', lease_until, 'sequence_number', last, 'num_tokens', num_tokens or 0,
    'text_length', text_length or 0, unpack(fields))
  if count > 0 and not (is_counted and counts[2 * number + 2] <= tonumber(own_listeners)) then
    redis.call('PUBLISH', args.channels[number],
      response_payload(rid, fence, sequence_number + 1, last, table.concat(entries, '\n')))
  end
  return {'ok', tonumber(cancel), lease_until}
end

local function taken(list, from, count)
  local part = {}
  for i = 1, count do part[i] = list[from + i] end
  return part
end

local replies, fields_taken, entries_taken, bytes_taken = {}, 0, 0, 0
for number, text in ipairs(args.heads) do
  local head = {string.match(text, '^(%S+) (%d+) (%d+) (%S+) (%S+) (%d+) (%d+) (%d+) (%d+)$')}
  local num_fields, num_entries, token_bytes = tonumber(head[7]), tonumber(head[8]), tonumber(head[9])
  local token_ids = string.sub(args.token_ids, bytes_taken + 1, bytes_taken + token_bytes)
  local fields = taken(args.fields, fields_taken, num_fields)
  local entries = taken(args.entries, entries_taken, num_entries)
  fields_taken, entries_taken, bytes_taken = fields_taken + num_fields, entries_taken + num_entries,
    bytes_taken + token_bytes
  local is_done, reply = pcall(append, number, head, token_ids, fields, entries)
  if not is_done then
    local message = type(reply) == 'table' and reply.err or tostring(reply)
    if is_outage(message) then return redis.error_reply(message) end
    reply = {'error', message}
  end
  replies[number] = reply
end
return {'ok', counts and counts.err and 1 or 0, replies}
