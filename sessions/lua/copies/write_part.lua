-- Writes messages of a session that does not exist yet; its parts go by themselves if it never does.
-- KEYS m msg tree ids copy
-- ok | lost (the call was silent for too long, or the session exists)
read_args({
  'call_id', 'lease_ms', 'life_ms',
  'place', -- of the first message in the tree, from 0
}, {
  'kept', -- message ids and token ids
  'messages', -- id, parent and body of each
})
local m, msg, tree, ids, copy = unpack(KEYS)
if redis.call('EXISTS', m) == 1 or redis.call('GET', copy) ~= args.call_id then return {'lost'} end
for i = 1, #args.kept, 2 do redis.call('HSET', ids, args.kept[i], args.kept[i + 1]) end
local is_new = redis.call('LLEN', tree) == tonumber(args.place) -- or the first reply was lost
for i = 1, #args.messages, 3 do
  local id, parent, body = unpack(args.messages, i, i + 2)
  redis.call('HSET', msg, id, body)
  if is_new then redis.call('RPUSH', tree, id .. ' ' .. parent) end
end
for _, key in ipairs({msg, tree, ids}) do redis.call('PEXPIRE', key, args.life_ms) end
redis.call('PEXPIRE', copy, args.lease_ms)
return {'ok'}
