-- Takes a share link back.
-- KEYS m share
-- ARGV 1 uid
-- ok | not_shared | not_found
local uid = redis.call('HGET', KEYS[1], 'uid')
if not uid or uid ~= ARGV[1] then return {'not_found'} end
if redis.call('UNLINK', KEYS[2]) == 0 then return {'not_shared'} end
return {'ok'}
