-- Takes a share link back.
-- KEYS m share
-- ok | not_shared | not_found
read_args({'uid'})
local uid = redis.call('HGET', KEYS[1], 'uid')
if not uid or uid ~= args.uid then return {'not_found'} end
if redis.call('UNLINK', KEYS[2]) == 0 then return {'not_shared'} end
return {'ok'}
