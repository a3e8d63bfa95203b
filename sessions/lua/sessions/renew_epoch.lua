-- Gives a session's log a new epoch, once: positions under the old one may be of another history.
-- KEYS m
-- ARGV 1 pub 2 live 3 old epoch, or '' for whichever it has if that began on another Redis 4 new epoch
-- ok | not_found
local m = redis.call('HMGET', KEYS[1], 'epoch', 'offset', 'server')
if not m[1] then return {'not_found'} end
local server = server_id()
if m[1] == ARGV[3] or (ARGV[3] == '' and m[3] ~= server) then
  redis.call('HSET', KEYS[1], 'epoch', ARGV[4], 'server', server)
  redis.call(ARGV[1], ARGV[2], 's ' .. ARGV[4] .. ' ' .. m[2]) -- no event: who watches must read all again
end
return {'ok'}
