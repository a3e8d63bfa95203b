-- Reads as many messages as are enough for one call, at least one: an HMGET of long ones would hold Redis and its
-- reader.
-- KEYS msg ids
-- ok bodies token_ids ('' where there are none)
read_args({
  'max_bytes', -- before compression
}, {
  'message_ids',
})
local bodies, kept, num_bytes = {}, {}, 0
for place, id in ipairs(args.message_ids) do
  local body = redis.call('HGET', KEYS[1], id)
  num_bytes = num_bytes + size_of(body)
  if place > 1 and num_bytes > tonumber(args.max_bytes) then break end
  bodies[place] = body or ''
  kept[place] = redis.call('HGET', KEYS[2], id) or ''
end
return {'ok', bodies, kept}
