-- Tries each command that the scripts need on a scratch key and names those that this user may not run.
-- KEYS scratch  ARGV 1 pub 2 channel
-- denied command…
local tries = {
  {'TIME'}, {'EXISTS'}, {'GET'}, {'LLEN'}, {'LPOP'}, {'LRANGE', 0, 0}, {'LREM', 0, 'x'}, {'RPUSH', 'x'}, {'UNLINK'},
  {'HSET', 'f', 1}, {'HGET', 'f'}, {'HMGET', 'f'}, {'HEXISTS', 'f'}, {'HINCRBY', 'f', 1}, {'PERSIST'}, {'UNLINK'},
  {'APPEND', 'x'}, {'PEXPIRE', 1000}, {'UNLINK'}, {'SET', 'x', 'PX', 1000}, {'UNLINK'},
  {'XADD', '1-0', 'd', 'x'}, {'UNLINK'}, {'ZADD', 1, 'x'}, {'ZRANGE', 0, 0}, {'ZREMRANGEBYSCORE', 0, 1}, {'UNLINK'},
}
local denied = {'denied'}
local function try(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'NOPERM') or string.find(reply.err, "can't run") or string.find(reply.err, "can't access")
      or string.find(reply.err, 'Unknown Redis command') then table.insert(denied, command) end
  end
end
for _, words in ipairs(tries) do
  if #words == 1 and words[1] == 'TIME' then try('TIME') else try(words[1], KEYS[1], unpack(words, 2)) end
end
try(ARGV[1], ARGV[2], '')
return denied
