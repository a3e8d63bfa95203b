-- Removes what a door has kept of a response that has ended, and with it messages that nothing follows.
-- KEYS m msg tree ids runs r e tok
-- ok messages_left | live | not_found
read_args({
  'uid', 'response_id', 'call_id',
}, {
  'message_ids', -- to be removed, unless another message follows one of them
})
local m, msg, tree, ids, runs, r, e, tok = unpack(KEYS)
local uid, head, message_count, calls = unpack(redis.call('HMGET', m, 'uid', 'head', 'message_count', 'calls'))
if not uid or uid ~= args.uid then return {'not_found'} end
if is_among(calls, args.call_id) then return {'ok', tonumber(message_count)} end -- removed before, the reply was lost
local kept = redis.call('HGET', msg, args.response_id)
if not kept then return {'not_found'} end
local status = redis.call('HGET', r, 'status')
if status and is_live(status) then return {'live'} end

local goes, lines, parent = {}, {}, ''
for _, id in ipairs(args.message_ids) do goes[id] = true end
local is_followed = false
for _, line in ipairs(redis.call('LRANGE', tree, 0, -1)) do
  local id, above = string.match(line, '^(%S+) (%S*)$')
  if goes[id] then
    table.insert(lines, line)
    if not goes[above] then parent = above end
  elseif goes[above] then
    is_followed = true
  end
end
redis.call('UNLINK', r, e, tok)
redis.call('HSET', m, 'calls', with_call(calls, args.call_id))
redis.call('ZREM', runs, args.response_id)
redis.call('HINCRBY', m, 'bytes', -size_of(kept))
redis.call('HDEL', msg, args.response_id)
if is_followed or #lines == 0 then return {'ok', tonumber(message_count)} end
for _, line in ipairs(lines) do redis.call('LREM', tree, 0, line) end
for _, id in ipairs(args.message_ids) do
  redis.call('HINCRBY', m, 'bytes', -size_of(redis.call('HGET', msg, id)))
  redis.call('HDEL', msg, id)
  redis.call('HDEL', ids, id)
end
if goes[head] then redis.call('HSET', m, 'head', parent) end
return {'ok', redis.call('HINCRBY', m, 'message_count', -#lines)}
