-- Appends turns, all or none. KEYS: session, turns, lease. ARGV: prefix, tenant, agent, session id, owner, token of
-- the lease (0 none), now, expires, milliseconds until the server deletes it (0 never), turns …
-- Returns the last seq, -1 if the session has another owner, -2 if the lease has another holder.
local prefix, tenant, agent, session, who, token, now, expires, forgotten = unpack(ARGV, 1, 9)
if token ~= '0' and redis.call('HGET', KEYS[3], 'token') ~= token then
    return -2
end
local id = tenant .. US .. agent .. US .. session
local owner, ends = unpack(redis.call('HMGET', KEYS[1], 'owner', 'expires'))
if owner and over(ends, now) then
    forget(prefix, id)
    owner = false
end
if owner and owner ~= who then
    return -1
end
if not owner then
    local index = prefix .. ':o:' .. tenant .. US .. who
    redis.call('HSET', KEYS[1], 'owner', who, 'index', index, 'created', now)
    redis.call('ZADD', prefix .. ':a:' .. tenant .. US .. agent, 0, session)
    redis.call('ZADD', index, 0, agent .. US .. session)
end
for n = 10, #ARGV do
    redis.call('RPUSH', KEYS[2], ARGV[n])
end
redis.call('HSET', KEYS[1], 'updated', now, 'expires', expires)
if tonumber(expires) > 0 then
    redis.call('ZADD', prefix .. ':x', expires, id)
    redis.call('PEXPIRE', KEYS[1], forgotten)
    redis.call('PEXPIRE', KEYS[2], forgotten)
else
    redis.call('ZREM', prefix .. ':x', id)
    redis.call('PERSIST', KEYS[1])
    redis.call('PERSIST', KEYS[2])
end
return redis.call('LLEN', KEYS[2])
