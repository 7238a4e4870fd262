-- A session without its content. KEYS: session, turns. ARGV: now.
local owner, created, updated, ends = unpack(redis.call('HMGET', KEYS[1], 'owner', 'created', 'updated', 'expires'))
if not owner or over(ends, ARGV[1]) then
    return false
end
return {owner, redis.call('LLEN', KEYS[2]), created, updated}
