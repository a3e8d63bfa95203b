-- Gives a session's log a new epoch, once: positions under the old one may be of another history.
-- KEYS m
-- ok | not_found
read_args({
  'channel',
  'old_epoch', -- '' = whichever it has, if that began on another Redis
  'new_epoch',
})
local epoch, offset, its_server = unpack(redis.call('HMGET', KEYS[1], 'epoch', 'offset', 'server'))
if not epoch then return {'not_found'} end
local server = server_id()
if epoch == args.old_epoch or (args.old_epoch == '' and its_server ~= server) then
  redis.call('HSET', KEYS[1], 'epoch', args.new_epoch, 'server', server)
  publish('s ' .. args.new_epoch .. ' ' .. offset) -- no event: who watches must read all again
end
return {'ok'}
