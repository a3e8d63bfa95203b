-- Reads as many messages as are enough for one call, at least one: an HMGET of long ones would hold Redis and its
-- reader. KEYS msg ids ARGV 1 max_bytes, before compression 2.. message ids ok bodies token_ids; '' where there are
-- none
local bodies, kept, num_bytes = {}, {}, 0
for place = 2, #ARGV do
  local body = redis.call('HGET', KEYS[1], ARGV[place])
  num_bytes = num_bytes + size_of(body)
  if place > 2 and num_bytes > tonumber(ARGV[1]) then break end
  bodies[place - 1] = body or ''
  kept[place - 1] = redis.call('HGET', KEYS[2], ARGV[place]) or ''
end
return {'ok', bodies, kept}
