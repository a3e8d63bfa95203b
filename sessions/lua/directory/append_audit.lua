-- Adds an entry to the audit log, once.
-- KEYS adm:audit
-- ARGV 1 call_id 2 max_entries 3.. field pairs
-- ok
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 64)) do
  if entry[2][2] == ARGV[1] then return {'ok'} end -- stored before, the reply was lost
end
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'call', ARGV[1], unpack(ARGV, 3))
return {'ok'}
