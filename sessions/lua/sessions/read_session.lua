-- Reads a session for its owner. Of another's no further field is read: the time would reveal that it exists.
-- KEYS m
-- ARGV 1 uid, '' for anybody's 2.. fields
-- ok values | not_found
local owner = redis.call('HGET', KEYS[1], 'uid')
if not owner or ARGV[1] ~= '' and ARGV[1] ~= owner then return {'not_found'} end
return {'ok', redis.call('HMGET', KEYS[1], unpack(ARGV, 2))}
