-- Keeps the wish to stop a response whose create has not arrived yet.
-- KEYS m i
-- ARGV 1 uid ('' = no check) 2 ttl_ms
-- ok (stored) | known rid | not_found
local uid = redis.call('HGET', KEYS[1], 'uid')
if not uid or (ARGV[1] ~= '' and uid ~= ARGV[1]) then return {'not_found'} end
local known = redis.call('GET', KEYS[2])
if known and known ~= 'cancelled' then return {'known', string.match(known, '^(%S+)')} end
redis.call('SET', KEYS[2], 'cancelled', 'PX', ARGV[2])
return {'ok'}
