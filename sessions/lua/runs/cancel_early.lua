-- Keeps the wish to stop a response whose create has not arrived yet.
-- KEYS m i
-- ok (stored) | known rid | not_found
read_args({
  'uid', -- '' = no check
  'life_ms',
})
local uid = redis.call('HGET', KEYS[1], 'uid')
if not uid or (args.uid ~= '' and uid ~= args.uid) then return {'not_found'} end
local known = redis.call('GET', KEYS[2])
if known and known ~= 'cancelled' then return {'known', string.match(known, '^(%S+)')} end
redis.call('SET', KEYS[2], 'cancelled', 'PX', args.life_ms)
return {'ok'}
